"""`python -m volt_billing`"""

import asyncio

from volt.runtime.host import serve
from volt.runtime.settings import from_environment
from volt_billing.effects import DEFINITION
from volt_billing.handlers import attach
from volt_billing.settings import Settings

if __name__ == "__main__":
    asyncio.run(serve(DEFINITION, from_environment(Settings), attach))
