"""A draft without knowledge has the shapes of the one it was made of, and other numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.bench.random_draft import CONFIG, WEIGHTS, main, randomise


@pytest.fixture
def head(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "fc.weight": torch.randn(64, 32, generator=generator, dtype=torch.float32).bfloat16(),
        "norm.weight": torch.ones(32),
        "d2t": torch.arange(8),
    }
    save_file(tensors, tmp_path / WEIGHTS)
    (tmp_path / CONFIG).write_text("{}")
    return tmp_path


def test_what_is_learnt_is_drawn_anew_and_the_rest_stays(head: Path, tmp_path: Path) -> None:
    randomise(head, tmp_path / "out")
    before, after = load_file(head / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    assert (tmp_path / "out" / CONFIG).read_text() == "{}"
    for name in ("d2t", "norm.weight"):
        assert torch.equal(before[name], after[name])
    old, new = before["fc.weight"].float(), after["fc.weight"].float()
    assert after["fc.weight"].dtype == torch.bfloat16
    assert float(new.std()) == pytest.approx(float(old.std()), rel=0.1)
    assert abs(float(torch.corrcoef(torch.stack((old.flatten(), new.flatten())))[0, 1])) < 0.1


def test_a_directory_without_a_head_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["random_draft", str(tmp_path), str(tmp_path / "out")])
    assert main() == 2
    assert "holds no model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
