package files

// WithWalkMemory makes searches and listings hold fewer bytes.
func WithWalkMemory(f *Files, bytes int) { f.walkMemory = bytes }

// Prepare reads a file for a replacement, and returns what puts the new content in its place.
func Prepare(f *Files, path string, r Replacement) (commit func() error, err error) {
	e, _, err := f.prepareEdit(path, r)
	return func() error { return e.staged.commit(unasked, e.attributes) }, err
}
