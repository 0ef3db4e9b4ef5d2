"""So that `import VOLT` works as published examples write it."""

from volt import *  # noqa: F403
