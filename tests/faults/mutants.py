def apply(name): raise NotImplementedError
