"""Turn an AppDef into a stage plan (pure data), and the plan into a KFP component or task.

The public functions are in ``stages`` and ``importing``. A value's way, from an AppDef to the compiled file:

``options``                              the options of a stage
``outputs``, ``reads``, ``variables``    those with rules of their own
``fields``, ``program``                  the AppDef's fields; entrypoint, args and env, as text and references
``inline_code``                          channels inside of programs for shells
``replicas``, ``engines``                the launcher in its place, if an engine runs the replicas
``component_inputs``                     the inputs of the component, and the names of references among them
``plan``                                 all of it as a ``StagePlan``
``emit``                                 the plan as a KFP component and task

``channels``, ``references`` and ``naming`` are what these share. ``functions`` calls TorchX component functions to see
which AppDef they build from their inputs.

A value that cannot be translated without losing something is refused where it is read: with ``AppDefError`` for the
AppDef and the options of a stage, ``ChannelError`` for a channel that cannot be filled in where it stands,
``OutputsError`` and ``ReadsError``. Messages name the field, its value, and the way out.
"""
