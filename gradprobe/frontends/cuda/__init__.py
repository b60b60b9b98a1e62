"""CUDA C++: what is known of it outside this folder, beside `gradprobe.cuda`."""

from .. import Language, Statements


class CudaLanguage(Language):
    suffixes = (".cu", ".cuh", ".h", ".hpp")

    def source(self, file: str) -> Statements:
        from .cuda_syntax import CudaStatements  # few checks read one

        return CudaStatements(file)


LANGUAGE = CudaLanguage()
