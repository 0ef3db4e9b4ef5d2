"""`python -m volt_bid_intake`"""

import asyncio

from volt.runtime.host import serve
from volt.runtime.settings import from_environment
from volt_bid_intake.effects import DEFINITION
from volt_bid_intake.handlers import attach
from volt_bid_intake.settings import Settings

if __name__ == "__main__":
    asyncio.run(serve(DEFINITION, from_environment(Settings), attach))
