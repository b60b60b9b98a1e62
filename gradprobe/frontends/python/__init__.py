"""Plain Python, and the files of kernels in Python."""

from .. import Language, Statements


class PythonLanguage(Language):
    suffixes = (".py",)

    def source(self, file: str) -> Statements:
        from .statements import PythonStatements

        return PythonStatements(file)


LANGUAGE = PythonLanguage()
