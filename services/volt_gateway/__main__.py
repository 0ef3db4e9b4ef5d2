"""`python -m volt_gateway`"""

import asyncio

from volt.runtime.settings import from_environment
from volt_gateway.server import serve
from volt_gateway.settings import Settings

if __name__ == "__main__":
    asyncio.run(serve(from_environment(Settings)))
