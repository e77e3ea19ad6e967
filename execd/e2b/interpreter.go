package e2b

func (h *handler) registerCode(_ adder) {}
