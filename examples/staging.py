"""A task that begins with a whole AgentState: a goal, a plan, an open question, and the risks that need approval.

    $ onward worker examples.staging:app
    $ onward submit staging @examples/agent_state.json --follow
    $ onward questions
    $ onward answer ID team-x
    $ onward approve

It needs no model. An observation becomes a patch (`observe`), the plan says what comes next, and the state is the first state with all
patches applied: kill the worker wherever you like, and another goes on with the same state.
"""

from __future__ import annotations

from typing import Any

from onward import Context, Onward
from onward.agents import AgentState, AnsweredQuestion, Fact, StatePatch

app = Onward()
CLUSTER: dict[str, str] = {}
"""The version of each service in each namespace."""

RISKS = {"Apply changes": "external_action"}
"""Steps of the plan that do more than look."""


async def act(step: str, service: str, namespace: str) -> str:
    """Do a step of the plan. Doing it twice has the same effect as once."""
    if step in RISKS:
        CLUSTER[f"{namespace}/{service}"] = "v2"
    return f"{service} in {namespace} is at {CLUSTER.get(f'{namespace}/{service}', 'v1')}"


def observe(state: AgentState, step: str, observation: str) -> StatePatch:
    """An observation as a change to the state: one more fact, and one step of the plan less."""
    fact = Fact(key=step, value=observation, source="cluster")
    return StatePatch(append_facts=(fact,), replace_plan=state.plan[1:])


@app.task
async def staging(ctx: Context, state: AgentState) -> dict[str, Any]:
    """Ask the open questions, then follow the plan."""
    state = await ctx.patch(state)
    for question in state.open_questions:
        answer = AnsweredQuestion(question=question, answer=await ctx.ask(question))
        state = await ctx.patch(StatePatch(answer_questions=(answer,)))
    service, namespace = state.fact("service"), state.known_facts[-1].value
    while state.plan:
        step = state.plan[0]
        if RISKS.get(step) in state.constraints.human_in_the_loop.required_for_risk_levels:
            await ctx.approve(f"{step}: {service} in {namespace}?", risk=RISKS[step])
        observation = await ctx.step(act, step, service, namespace, name=step)
        state = await ctx.patch(observe(state, step, observation))
    return state.model_dump(mode="json", exclude_defaults=True)
