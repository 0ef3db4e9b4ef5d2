"""`python -m volt_health_monitor`"""

import asyncio

from volt.runtime.host import serve
from volt.runtime.settings import from_environment
from volt_health_monitor.effects import definition
from volt_health_monitor.handlers import attach
from volt_health_monitor.settings import Settings

if __name__ == "__main__":
    settings = from_environment(Settings)
    asyncio.run(serve(definition(settings.timing), settings, attach))
