package command

// WithoutHandles makes a manager do as if the kernel gave no descriptors of processes. It is to be called before the first command.
func WithoutHandles(m *Manager) { m.noHandles = true }
