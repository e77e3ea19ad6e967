package e2b

func (h *handler) registerFilesystem(_ adder) {}
