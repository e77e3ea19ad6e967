package engine

import "context"

// Caller is on whose behalf an image is asked for. The zero value is the service itself.
type Caller struct {
	Name string // of the API key; its pulls take turns with those of others
	// Guest is no administrator: registries with internal addresses are asked only if they are
	// listed.
	Guest bool
}

type callerKey struct{}

// WithCaller returns a context for what is asked for on behalf of the caller.
func WithCaller(ctx context.Context, caller Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf returns on whose behalf ctx is.
func CallerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}
