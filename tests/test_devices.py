"""Several devices give the numbers of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fast import few


@pytest.mark.parametrize("part", few(["whole", "minibatches", "stream"], 0))
def test_eight_devices_are_as_one(part):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    worker = Path(__file__).with_name("devices_worker.py")
    done = subprocess.run(
        [sys.executable, worker, part], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("alike")
