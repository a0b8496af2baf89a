"""pytest bench/: each operator beside its peers. Sizes are real ones on a GPU and small ones on CPU."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # peers.py and measure.py


def pytest_report_header() -> list[str]:
    import peers
    import torch

    device = torch.cuda.get_device_name() if peers.DEVICE == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return [f"device: {device}", *(f"absent: {name} ({reason})" for name, reason in peers.ABSENT.items())]
