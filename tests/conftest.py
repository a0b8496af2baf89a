import os
import sys
from pathlib import Path

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every model of the tests is made by the tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton: its kernels run on CPU tensors
sys.path.insert(0, str(Path(__file__).parent))  # tests/tiny.py and its like
