package e2b

func (h *handler) registerProcess(_ adder) {}
