"""The handlers of the MCP tests: they add, ask, fail and wait; and an agent. Also an app of its own, for processes."""

from __future__ import annotations

from typing import Any

from onward import Onward
from onward.agent.models.scripted import ScriptedModel
from onward.agent.tools import tool
from onward.core.state import AgentState, Fact, StatePatch


def shop(app: Onward) -> Onward:
    @app.task
    async def add(ctx: Any, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @app.task(retry=1)
    async def careful(ctx: Any, what: str) -> str:
        """Do something after an approval."""
        await ctx.approve(f"Really {what}?", risk="write_local")
        colour = await ctx.ask("Which colour?", choices=["red", "blue"])
        return f"{what} in {colour}"

    @app.task(retry=1)
    async def fail(ctx: Any) -> None:
        """Fail."""
        raise ValueError("no such thing")

    @app.task
    async def wait(ctx: Any) -> Any:
        """Wait for a signal."""
        return await ctx.signal("go")

    @tool(normalize=lambda output: StatePatch(replace_plan=("look", "clean"), add_questions=("which disk?",)))
    def look() -> str:
        """Look around."""
        return "87 % full"

    app.agent("devops", model=ScriptedModel([[("look", {})], "done"]), tools=[look], description="An agent.")
    return app


app = shop(Onward(lease_s=1.0, heartbeat_s=0.2, poll_s=0.05, mcp_expose="add careful wait"))


@app.task
async def scout(ctx: Any) -> str:
    """Make a plan, and wait for the signal that it is taken over."""
    await ctx.patch(AgentState(goal="clean the disk"))
    fact = Fact(key="disk", value="87 % full", source="scout")
    await ctx.patch(StatePatch(append_facts=(fact,), replace_plan=("look", "clean /var/log", "report")))
    await ctx.artifact("du -sh /var/log", summary="what is large")
    await ctx.signal("taken over")
    return str((await ctx.patch()).fact("taken over by"))
