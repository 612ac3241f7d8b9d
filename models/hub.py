"""Models of the Hugging Face hub: one snapshot, or a sentence that says why there is none.

Called by `source`. Files are kept in the hub's own cache, shared with everything else that uses it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from .errors import ModelError
from .progress import Progress, silent

# Weights, configs, and every file a tokenizer may be read from; no pickles, no code.
PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
# The original checkpoint that some repositories carry beside the converted one.
LEFT_OUT = ["consolidated*", "original/*", "onnx/*"]

_INSTEAD = "give a local directory or a .gguf file instead"


def snapshot(repo: str, progress: Progress = silent) -> Path:
    """Download (or find) the repository `org/name` and return its snapshot directory.

    Reports the stage "download" in bytes. Raises ModelError when the hub is out of reach and the
    cache does not hold the model, when there is no such repository, and when it is gated.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo,
                allow_patterns=PATTERNS,
                ignore_patterns=LEFT_OUT,
                tqdm_class=_reporting(progress),
            )
        )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo} is gated: accept its terms on the hub and set HF_TOKEN, or {_INSTEAD}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"the hub has no model {repo} (or it is private and HF_TOKEN is not set), and there "
            f"is no directory of that name here; check the name, or {_INSTEAD}"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ModelError(
            f"{repo} is neither a directory here nor in the hub's cache, and the hub cannot be "
            f"reached; {_INSTEAD}"
        ) from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise ModelError(f"cannot fetch {repo} from the hub: {error}; or {_INSTEAD}") from error


def _reporting(progress: Progress) -> type:
    """A tqdm class that draws nothing and passes the count of bytes on to `progress`."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    counts = {"done": 0, "total": 0}

    class Reporting(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            silenced = {**kwargs, "disable": False, "file": io.StringIO()}
            super().__init__(*args, **silenced)

        def update(self, n: float | None = 1) -> Any:
            drawn = super().update(n)
            # one bar counts files; of those that count bytes, as received and as written, the
            # one that is ahead is shown
            if self.unit == "B":
                counts["done"] = max(counts["done"], int(self.n))
                counts["total"] = max(counts["total"], int(self.total or 0))
                progress("download", counts["done"], counts["total"])
            return drawn

    return Reporting
