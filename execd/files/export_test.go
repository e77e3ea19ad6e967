package files

// WithWalkMemory makes searches and listings hold fewer bytes.
func WithWalkMemory(f *Files, bytes int) { f.walkMemory = bytes }
