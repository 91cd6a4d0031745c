# The everyday commands. What they do is in scripts/.
VENV ?= .venv

.PHONY: up test check fix bench-gateway bench-yield bench-agent-rest demo fuzz soak chaos retention gpu-check services clean

up: $(VENV)/installed            ## run panal on this machine
	@$(VENV)/bin/panal up $(ARGS)

demo: $(VENV)/installed          ## see an answer survive the loss of its node
	@$(VENV)/bin/panal demo failover

test:                            ## everything that CI runs
	@scripts/test $(ARGS)

check: $(VENV)/developing        ## lint, types, layers, dependencies
	@VENV=$(VENV) scripts/check

fix: $(VENV)/developing          ## format and harmless corrections
	@$(VENV)/bin/ruff format src tests bench && $(VENV)/bin/ruff check --fix src tests bench

bench-gateway: $(VENV)/developing   ## what a gateway costs, side by side in one run
	@$(VENV)/bin/python bench/gateway.py $(ARGS)

bench-yield: $(VENV)/developing  ## 200 keys pressed while answers run: how soon the desk is its owner's
	@YIELD_REPETITIONS=$${YIELD_REPETITIONS:-200} $(VENV)/bin/python -m pytest tests/e2e/test_yield.py $(ARGS)

bench-agent-rest: $(VENV)/developing   ## what a resting agent costs: processor and memory over a minute
	@$(VENV)/bin/python bench/agent_rest.py $(ARGS)

fuzz: $(VENV)/developing         ## the long form of the fuzz test
	@FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-5000} $(VENV)/bin/python -m pytest tests/e2e/test_fuzz.py --timeout 3600 $(ARGS)

soak: $(VENV)/developing         ## 100,000 requests of every kind; prints what is left behind
	@SOAK_REQUESTS=$${SOAK_REQUESTS:-100000} $(VENV)/bin/python -m pytest -s tests/e2e/test_soak.py $(ARGS)

retention: $(VENV)/developing    ## a million old usage records go, on both databases; prints how long it took
	@RETENTION_ROWS=$${RETENTION_ROWS:-1000000} $(VENV)/bin/python -m pytest -s tests/contract/test_store_retention.py $(ARGS)

gpu-check: $(VENV)/installed     ## what this machine's GPUs tell, and a yield; five minutes at the most
	@$(VENV)/bin/python -m panal.cli.gpu_check $(ARGS)

chaos: $(VENV)/developing        ## a dozen nodes, everything happens at once; prints what clients saw
	@CHAOS_NODES=$${CHAOS_NODES:-12} CHAOS_CLIENTS=$${CHAOS_CLIENTS:-16} CHAOS_SECONDS=$${CHAOS_SECONDS:-180} \
		$(VENV)/bin/python -m pytest -s tests/e2e/test_chaos.py $(ARGS)

services: $(VENV)/developing     ## start what the tests need
	@scripts/services

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache

$(VENV)/installed: pyproject.toml constraints.txt
	@VENV=$(VENV) scripts/install

$(VENV)/developing: pyproject.toml constraints.txt
	@VENV=$(VENV) scripts/install --dev
