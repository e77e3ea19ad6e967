package serve

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve/respond"
)

const (
	// X-Request-ID in net/http's own spelling, which costs nothing to look up
	headerRequestID    = "X-Request-Id"
	maxRequestIDLength = 128
)

// requestState is what the layers of one request share. It travels in
// the context because that is all a strict handler gets.
type requestState struct {
	id        string
	began     time.Time
	request   *http.Request
	operation string
	quiet     bool
	stream    bool
	principal any
	end       context.CancelCauseFunc // of the request; nil unless it is revocable
	after     func()                  // see After; nil for none
	code      string
	body      *watchedBody
	rest      func(context.Context, *respond.EventStream) error // see StreamEvents
	line      accessLine                                        // of a stream that goes on
	trace     string                                            // id of the request's trace; empty for none
	traced    func(Traced)                                      // ends its span; nil without a tracer
	// nil unless the request is recorded in an audit log
	admission *admission
	json      []byte

	// Handlers may add log fields from goroutines of their own.
	mu     sync.Mutex
	fields []logField
	few    [3]logField // what fields is made of as long as there are no more
}

type logField struct {
	key   string
	value any
}

type stateKey struct{}

func stateOf(ctx context.Context) *requestState {
	state, _ := ctx.Value(stateKey{}).(*requestState)
	return state
}

// RequestID is the id of the request that ctx belongs to, "" outside of one. The
// response carries it in X-Request-ID, and so does every line that
// [github.com/rs/zerolog.Ctx] logs for ctx, under request_id.
func RequestID(ctx context.Context) string {
	if state := stateOf(ctx); state != nil {
		return state.id
	}
	return ""
}

// Request is the HTTP request that ctx belongs to, for strict handlers, which only
// get a context. It is nil outside of a request.
func Request(ctx context.Context) *http.Request {
	if state := stateOf(ctx); state != nil {
		return state.request
	}
	return nil
}

// Principal is what [Options.Authenticate] returned for the request that ctx belongs
// to; nil when the operation needs no authentication.
func Principal(ctx context.Context) any {
	if state := stateOf(ctx); state != nil {
		return state.principal
	}
	return nil
}

// JSONBody is the JSON body of the request that ctx belongs to, byte for byte as it
// was sent, for handlers that pass a part of it on unchanged. It is nil when there was
// none. It must not be changed.
func JSONBody(ctx context.Context) []byte {
	if state := stateOf(ctx); state != nil {
		return state.json
	}
	return nil
}

// Began is when the request that ctx belongs to reached the service, the zero time
// outside of a request.
func Began(ctx context.Context) time.Time {
	if state := stateOf(ctx); state != nil {
		return state.began
	}
	return time.Time{}
}

// After has a function called when the request that ctx belongs to has been answered or given up,
// and its handler has returned: for a stream that is when the stream ends. Of several functions
// the last is called first. Outside of a [Server] it does nothing.
func After(ctx context.Context, do func()) {
	state := stateOf(ctx)
	if state == nil {
		return
	}
	if earlier := state.after; earlier != nil {
		last := do
		do = func() { defer earlier(); last() }
	}
	state.after = do
}

// answered calls what After was given.
func (state *requestState) answered() {
	if state.after != nil {
		state.after()
	}
}

// LogField adds a field to the request's line in the access log and to the line that
// is the cause of its failure. An [AuditLog] can read it too. The value must be no
// secret. It does nothing outside of a request.
func LogField(ctx context.Context, key string, value any) {
	state := stateOf(ctx)
	if state == nil {
		return
	}
	state.mu.Lock()
	defer state.mu.Unlock()
	if state.fields == nil {
		state.fields = state.few[:0]
	}
	state.fields = append(state.fields, logField{key, value})
}

// field returns the last value that LogField recorded under that key, nil if there is none.
func (state *requestState) field(key string) any {
	state.mu.Lock()
	defer state.mu.Unlock()
	for _, field := range slices.Backward(state.fields) {
		if field.key == key {
			return field.value
		}
	}
	return nil
}

// annotate adds the request's fields to a line of the log.
func (state *requestState) annotate(line *zerolog.Event) *zerolog.Event {
	state.mu.Lock()
	defer state.mu.Unlock()
	for _, field := range state.fields {
		// Interface would encode these by reflection, which costs more than the rest of a line.
		switch value := field.value.(type) {
		case string:
			line = line.Str(field.key, value)
		case int:
			line = line.Int(field.key, value)
		default:
			line = line.Interface(field.key, value)
		}
	}
	return line
}

// identify gives the request its id, state and logger.
func (s *Server) identify(w http.ResponseWriter, r *http.Request) *requestState {
	id := r.Header.Get(headerRequestID)
	if !validRequestID(id) {
		id = newRequestID()
	}
	// The request gets it too, so that a proxied service logs the same id, and a
	// client's unusable id does not fail the validation of a declared header.
	r.Header.Set(headerRequestID, id)
	w.Header().Set(headerRequestID, id)

	state := &requestState{id: id, began: time.Now()}
	s.trace(state, r)
	logger := s.logger(state)
	state.request = r.WithContext(context.WithValue(logger.WithContext(r.Context()), stateKey{},
		state))
	return state
}

// logger is the one that every line about the request is written with.
func (s *Server) logger(state *requestState) zerolog.Logger {
	fields := s.options.Logger.With().Str("request_id", state.id)
	if state.trace != "" {
		fields = fields.Str("trace_id", state.trace)
	}
	return fields.Logger()
}

// validRequestID accepts visible ASCII only: the id goes into headers and logs.
func validRequestID(id string) bool {
	if len(id) == 0 || len(id) > maxRequestIDLength {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// newRequestID returns a random UUID (version 4).
func newRequestID() string {
	var b [16]byte
	rand.Read(b[:]) // crypto/rand.Read never returns an error.
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	text := make([]byte, 0, 36)
	for i, part := range [][]byte{b[0:4], b[4:6], b[6:8], b[8:10], b[10:16]} {
		if i > 0 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, part)
	}
	return string(text)
}
