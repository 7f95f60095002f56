"""A run as one page of HTML, which needs nothing but a browser.

``model`` reads the record of a run. ``rows`` and ``searches`` make tables of it, whose figures ``figures`` draws;
``graph`` and ``timeline`` draw the run as a whole, ``page`` fills the template, and ``readable`` gives runs a method.
"""
