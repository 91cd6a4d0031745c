"""Windows: a task of the Task Scheduler. Written from Microsoft's documentation, tried by its text only.

A task and no service of the service manager: in session 0 nobody's input can be seen, a task at logon runs
in the owner's own session, needs no administrator and no wrapper program (docs/adr/0025-service.md).
"""

from pathlib import Path
from xml.sax.saxutils import escape

from panal.cli.service.plan import DESCRIPTIONS, Plan, Service, Step


def task_name(service: Service) -> str:
    return f"\\panal\\{service.name}"


def task(service: Service) -> str:
    """The task's XML. The scheduler knows one pause between restarts, a minute at least."""
    program, *words = service.command()
    system = service.scope == "system"
    principal = (
        "      <UserId>S-1-5-19</UserId>\n      <RunLevel>LeastPrivilege</RunLevel>"
        if system
        else "      <LogonType>InteractiveToken</LogonType>\n      <RunLevel>LeastPrivilege</RunLevel>"
    )
    trigger = "BootTrigger" if system else "LogonTrigger"
    return f"""<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>{escape(DESCRIPTIONS[service.what])}</Description>
  </RegistrationInfo>
  <Triggers>
    <{trigger}>
      <Enabled>true</Enabled>
    </{trigger}>
  </Triggers>
  <Principals>
    <Principal id="Author">
{principal}
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <AllowHardTerminate>true</AllowHardTerminate>
    <StartWhenAvailable>true</StartWhenAvailable>
    <WakeToRun>false</WakeToRun>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>5</Priority>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>999</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{escape(program)}</Command>
      <Arguments>{escape(" ".join(quoted(word) for word in words))}</Arguments>
    </Exec>
  </Actions>
</Task>
"""


def quoted(word: str) -> str:
    """A word as the C runtime of Windows reads a command line."""
    if word and not any(each in word for each in ' \t"'):
        return word
    out, slashes = "", 0
    for each in word:
        if each == "\\":
            slashes += 1
            continue
        out += "\\" * (2 * slashes + 1 if each == '"' else slashes) + each
        slashes = 0
    tail = "\\" * (2 * slashes)
    return f'"{out}{tail}"'


def file_of(service: Service, home: Path) -> Path:
    """Where the XML is kept for the scheduler to read."""
    return home / "service" / f"{service.name}.xml"


def install(service: Service, home: Path) -> Plan:
    """Make the task, and start it now and with every logon or boot."""
    file = file_of(service, home)
    notes: tuple[str, ...] = ()
    if service.scope == "system":
        notes = ("It runs before anybody logs on and sees no input: only for machines without an owner.",)
    return Plan(
        files=((file, task(service)),),
        steps=(
            Step(("schtasks", "/Create", "/TN", task_name(service), "/XML", str(file), "/F")),
            Step(("schtasks", "/Run", "/TN", task_name(service))),
        ),
        notes=notes,
    )


def uninstall(service: Service, home: Path) -> Plan:
    """Stop it and forget the task."""
    return Plan(
        steps=(
            Step(("schtasks", "/End", "/TN", task_name(service)), optional=True),
            Step(("schtasks", "/Delete", "/TN", task_name(service), "/F"), optional=True),
        ),
        removes=(file_of(service, home),),
        notes=(f"The node's identity and data stay in {service.home}.",),
    )


def status(service: Service) -> tuple[str, ...]:
    return ("schtasks", "/Query", "/TN", task_name(service), "/FO", "LIST", "/V")
