"""What nvidia-smi says of a GPU is told in words."""

from gradprobe.commands.doctor.machine import machine


def test_memory_and_clocks_have_names(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 12 MiB, 345 MHz, 1980 MHz, 3201 MHz, 580.159.04'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine().smi == (
        "NVIDIA H200: 143771 MiB of memory, 12 MiB in use; clock 345 MHz of at most 1980 MHz, of the memory 3201 MHz; "
        "driver 580.159.04"
    )
