"""The operator of these tests."""

import pytest
from operator_under_test import OperatorUnderTest


@pytest.fixture
def operator(tmp_path):
    return OperatorUnderTest(tmp_path)
