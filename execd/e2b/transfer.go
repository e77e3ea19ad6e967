package e2b

func (h *handler) registerFiles(_ adder) {}
