// Package kind names the errors that only hold others together. See the package above.
package kind

// Schema is the error of a whole schema.
type Schema struct{}

// KeywordPath returns nothing.
func (*Schema) KeywordPath() []string { return nil }

// Group is the error of several rules.
type Group struct{}

// KeywordPath returns nothing.
func (*Group) KeywordPath() []string { return nil }

// Reference is the error of what a reference leads to.
type Reference struct{}

// KeywordPath returns nothing.
func (*Reference) KeywordPath() []string { return nil }
