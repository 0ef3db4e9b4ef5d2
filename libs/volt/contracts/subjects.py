"""Every subject on the bus. The account is always a token of its own, so that a permission can name it.

log.account.<account>            bid-intake      accounts opened, commands refused
log.job.<account>.<job>          bid-intake      job requests admitted, refused, released
log.bid.<account>.<node>         bid-intake      bids accepted, refused, withdrawn; nodes drained, resumed
log.market                       matcher         grants and reasons
log.cluster.<account>.<job>      provisioner     the life of a cluster
log.node.<account>.<node>        health-monitor  alive, unknown, lost; faults of GPUs; reliability
log.cover                        health-monitor  what heartbeats cover
log.fleet                        health-monitor  losses held and released, the pace of beats
log.ledger                       billing         every movement of money
cmd.<account>.account            anyone          open an account
cmd.<account>.job                buyers          request and release jobs
cmd.<account>.bid.<node>         providers       place, change and withdraw bids, drain nodes
cmd.<account>.report.<node>      agents          what became of the desired state
desired.<account>.<node>         provisioner     what a node should be doing; the last value counts
desired.fleet                    health-monitor  the pace at which every agent beats; the last value counts
heartbeats.<account>.<node>      agents          signs of life
heartbeats.monitor               health-monitor  its own probes
logs.<account>.<job>.<node>      agents          workload output
dead.<subject it failed on>      any service     what could not be answered
checkpoints.<account>.<job>.<rank>.<generation>.<digest>  agents  objects of checkpoints, on a server of their own
"""

LOG_MARKET = "log.market"
LOG_COVER = "log.cover"
LOG_FLEET = "log.fleet"
LOG_LEDGER = "log.ledger"
DESIRED_FLEET = "desired.fleet"
MONITOR_PROBE = "heartbeats.monitor"

ALL_ACCOUNTS = "log.account.*"
ALL_JOBS = "log.job.*.*"
ALL_BIDS = "log.bid.*.*"
ALL_CLUSTERS = "log.cluster.*.*"
ALL_NODES = "log.node.*.*"
ALL_HEARTBEATS = "heartbeats.>"
ALL_DESIRED = "desired.*.*"

ACCOUNT_COMMANDS = "cmd.*.account"
JOB_COMMANDS = "cmd.*.job"
BID_COMMANDS = "cmd.*.bid.*"
REPORTS = "cmd.*.report.*"


def log_account(account: str) -> str:
    return f"log.account.{account}"


def log_job(account: str, job: str) -> str:
    return f"log.job.{account}.{job}"


def log_bid(account: str, node: str) -> str:
    return f"log.bid.{account}.{node}"


def log_cluster(account: str, job: str) -> str:
    return f"log.cluster.{account}.{job}"


def log_node(account: str, node: str) -> str:
    return f"log.node.{account}.{node}"


def account_events(account: str) -> tuple[str, ...]:
    """Filters of every event that is this account's own."""
    return (f"log.*.{account}", f"log.*.{account}.>")


def command_account(account: str) -> str:
    return f"cmd.{account}.account"


def command_job(account: str) -> str:
    return f"cmd.{account}.job"


def command_bid(account: str, node: str) -> str:
    return f"cmd.{account}.bid.{node}"


def command_report(account: str, node: str) -> str:
    return f"cmd.{account}.report.{node}"


def desired(account: str, node: str) -> str:
    return f"desired.{account}.{node}"


def heartbeats(account: str, node: str) -> str:
    return f"heartbeats.{account}.{node}"


def logs(account: str, job: str, node: str) -> str:
    return f"logs.{account}.{job}.{node}"


def job_logs(account: str, job: str) -> str:
    """Filter of every node's output of one job."""
    return f"logs.{account}.{job}.*"


def checkpoint_object(name: str) -> str:
    """Where the object of this name is, whose segments are joined by slashes."""
    return f"checkpoints.{name.replace('/', '.')}"


def checkpoint_objects(prefix: str) -> str:
    """Filter of every object whose first segments are these."""
    return f"{checkpoint_object(prefix)}.>"


def dead_letter(subject: str) -> str:
    return f"dead.{subject}"


def sender(command_subject: str) -> tuple[str, str]:
    """The account and node (empty if none) that the subject of a command speaks for."""
    tokens = command_subject.split(".")
    return (tokens[1] if len(tokens) > 1 else ""), (tokens[3] if len(tokens) > 3 else "")


def template(subject: str) -> str:
    """The subject with its ids taken out, for span names and metric labels: there are a dozen of them."""
    head, *rest = subject.split(".")
    if head in ("dead", "checkpoints"):
        return f"{head}.>"
    if head == "cmd" and len(rest) > 1:
        return ".".join([head, "{account}", rest[1], *("{node}" for _ in rest[2:])])
    if head == "log" and len(rest) > 1:
        return ".".join([head, rest[0], "{account}", *(f"{{{rest[0]}}}" for _ in rest[2:])])
    if head in ("desired", "heartbeats") and len(rest) > 1:
        return f"{head}.{{account}}.{{node}}"
    if head == "logs":
        return "logs.{account}.{job}.{node}"
    return subject
