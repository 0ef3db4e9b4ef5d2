"""`python -m volt_provisioner`"""

import asyncio

from volt.runtime.host import serve
from volt.runtime.settings import from_environment
from volt_provisioner.effects import definition
from volt_provisioner.handlers import attach
from volt_provisioner.settings import Settings

if __name__ == "__main__":
    settings = from_environment(Settings)
    asyncio.run(serve(definition(settings.timing), settings, attach))
