"""A fuzzer: inputs drawn and mutated at random, and what must hold of every answer.

    python -m fuzz --seconds 3600 --seed 7 --keep faults      # `make fuzz`
    python -m fuzz --seed 7 --only drawn-1234                 # one case again

    case        an input, what was expected of it, and what came instead
    layouts     drawn layouts as cases
    searches    drawn spaces, hostile words of search and solve
    files       mutated files, settings and arguments as cases
    special     complex keys, names that are no text, folders of results, zeroes
    models      models of every family, full size or with a few layers
    drawing     layouts over the schema that a framework accepts, grown key by key
    invariants  what holds of one answer
    pairs       what holds between two answers
    mutations   trees and texts, changed
    seeds       files of every kind that the commands read, to mutate
    commands    the command line in this process, and what is expected of what it prints
    kinds       the kinds of cases, and how many of each
    running     one case, within its bounds
    bounds      time and memory of one case
    shrinking   smaller inputs with the same fault
    driver      workers, the summary, faults that are kept
    kills       kills, interrupts and full disks at random moments of a batch: a program of its own

A case is known by its kind and number; with the seed it is the same on every machine.
"""
