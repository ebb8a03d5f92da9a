"""The models EdgeSpec ships, makes, finds and fetches. It knows nothing of the program that runs them.

A picker, or any program, uses these:

    from edgespec_models.shelf.catalogue import catalogue, find      # CatalogueEntry: pairs worth trying
    from edgespec_models.shelf.store import Store                    # InstalledPair: pairs on this machine
    from edgespec_models.shelf.found import find_models, find_pairs  # files other programs have downloaded
    from edgespec_models.hub.hub import Hub
    from edgespec_models.hub.pull import Cancelled, Pull, order, plan_pull

    store = Store(folder)                        # EdgeSpec's own: edgespec.system.config.data_folder()
    store.pairs(), store.default()               # installed pairs, and the name of the one taken by default
    wanted = order("qwen3-8b")                   # or order("owner/name:Q4_K_M", draft="owner/name")
    plan = plan_pull(Hub(), wanted)              # blocks for seconds: asks the hub, reads two headers
    plan.verdict, plan.to_fetch, plan.at_hand    # does the pair fit? bytes to come, bytes already here
    pull = Pull(plan, Hub(), store)
    pair = pull.run(on_progress)                 # blocks: run it in a thread. on_progress(Progress) comes
                                                 # ten times a second, in that thread
    pull.cancel()                                # from any other: ends at once, what came is kept

`order` raises CatalogueError, HubError or StoreError, `plan_pull` HubError, `run` HubError, StoreError or
Cancelled. Each message is one sentence for a user. Importing this package loads nothing; `hub` and what
stands on it load huggingface-hub.
"""
