"""Makes `support` importable from every test, keeps torch small and the model hub out of reach."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "2")
# On a busy machine, threads that spin while they wait keep those they wait for from running.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

sys.path.insert(0, str(Path(__file__).parent))

# How fast examples are drawn says more about what else the machine does than about a test.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
