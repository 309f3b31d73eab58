"""The conformance suite: clauses and cases (`gridpact.contract`) asked of launchers, each in a process of its own.

`model` says what a clause and a case are, `check` how a case asks, `subjects` who is asked, `worker` and `isolation`
where, `plugin` when (pytest), `evidence` what is kept, `report` what people see, `saboteurs` that a case can fail.
"""
