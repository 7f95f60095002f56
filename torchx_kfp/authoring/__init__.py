"""Turn an AppDef into a stage plan (pure data), and the plan into a KFP component or task.

The public functions are in ``stages``. On its way from an AppDef to the compiled file, a stage has five forms:

``StageOptions``   its options (``options``), of which ``Stages`` has those that stages share. ``reads`` and ``outputs``
                   parse two that have rules of their own
``Text``           each text of the AppDef and of the options, as constants and ``Reference``s to values that are known
                   only at run time (``references``); ``channels`` finds them, ``inline_code`` keeps them out of code
``Application``    what a pod runs and what it is like (``application``): a role's application, or the launcher that
                   starts the replicas of a stage with an engine (``replicas``, ``pods``, ``engines``). ``appdef`` has
                   the fields of AppDefs
the command        text for KFP: a ``Renderer`` (``rendering``) escapes words, turns references into placeholders and
                   plans the component's parameters for them, and ``contract.command`` makes the command
``StagePlan``      everything about the stage (``plan``), from which ``emit`` makes the KFP component and task

``functions`` calls TorchX component functions to see which AppDef they build from their inputs, ``python`` makes an
AppDef that calls a function of the user's, ``one_stage`` makes a pipeline of one stage, and ``naming`` makes names that
others accept.

A value that cannot be translated without losing something is refused where it is read: with ``AppDefError``, whose
message names the field, its value, and the way out.
"""
