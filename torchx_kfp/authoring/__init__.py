"""Plan stages from AppDefs (pure data), and make KFP components and tasks from the plans.

The public functions are in ``stages``. On its way from an AppDef to the compiled file, a stage has five forms:

- ``StageOptions``: its options (``options``); ``Stages`` has shared ones. ``reads`` parses one of them.
- ``Text``: each text of the AppDef and the options, as constants and ``Reference``s to values that are known only when
  the stage runs (``references``). ``channels`` finds them, ``inline_code`` keeps them out of code.
- ``Application``: what the pod runs, and its settings (``application``): the application of a role, or the launcher of
  the replicas of a stage with an engine (``replicas``, ``pods``, ``engines``). ``appdef`` checks the fields of AppDefs.
- the command: text for KFP. A ``Renderer`` (``plan``) escapes words, turns references into placeholders, and adds a
  parameter for each; ``contract.command`` puts the command together.
- ``StagePlan``: everything about the stage (``plan``), from which ``emit`` makes the KFP component and task.

``functions`` calls TorchX component functions to see which AppDef they build from their inputs, ``python`` makes an
AppDef that calls a Python function, and ``naming`` makes names that KFP, Kubernetes and the tracker accept.

A value that cannot be translated without loss raises an ``AppDefError``, which names the field, the value and the
remedy.
"""
