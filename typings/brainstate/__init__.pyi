# brainstate annotates states() and grad() with unions that no caller can use; to the type checker it is untyped.
from typing import Any

def __getattr__(name: str) -> Any: ...
