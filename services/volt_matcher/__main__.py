"""`python -m volt_matcher`"""

import asyncio

from volt.runtime.host import serve
from volt.runtime.settings import from_environment
from volt_matcher.effects import DEFINITION
from volt_matcher.handlers import attach
from volt_matcher.settings import Settings

if __name__ == "__main__":
    asyncio.run(serve(DEFINITION, from_environment(Settings), attach))
