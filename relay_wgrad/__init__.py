"""relay-wgrad: convolution gradients as first-class operators in Apache TVM.

    import relay_wgrad
    relay_wgrad.register()

puts the operators and their rules into TVM; importing alone changes nothing, and loads nothing:
what `__init__.pyi` names is imported when it is first asked for, and TVM with it, which takes
seconds.
"""

from .lazy_package import attach as _attach

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
