"""A short copy gives a figure where the device is, and none where it is not."""

import torch

from paceline.kernels.bandwidth import measure_bandwidth


def test_a_copy_is_timed():
    assert 1e8 < measure_bandwidth("cpu", 1 << 22) < 1e13


def test_a_device_that_is_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert measure_bandwidth("cuda") is None
