"""Laws: one file each, a function `check` that raises `Broken`, in one sentence, where a part does not keep the law."""
