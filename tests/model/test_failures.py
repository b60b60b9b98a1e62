"""What is said of errors that nobody foresaw."""

from gradprobe.model.failures import as_failure, fault_words


def raised(words):
    try:
        assert not words, words
        raise AssertionError
    except AssertionError as error:
        return error


def test_an_error_without_a_message_is_told_by_its_line():
    line = raised("").__traceback__.tb_lineno
    assert fault_words(raised("")) == f"AssertionError: test_failures.py:{line}"
    assert fault_words(raised("no row")).partition("\n")[0] == "AssertionError: no row"
    assert f"test_failures.py:{line}" in str(as_failure(raised("")))
