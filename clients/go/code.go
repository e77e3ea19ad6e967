package sandbox

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"time"

	"sandbox.internal/clients/go/execd"
)

// executionID is the header with an execution's id.
const executionID = "X-Execution-Id"

// Code runs cells of code in a sandbox whose image has kernels.
type Code struct{ box *Sandbox }

// CodeOptions are how a cell runs. Nil means python, in its default context.
type CodeOptions struct {
	// Language is python, java, javascript, typescript, go or bash, if the image has it.
	Language string
	// Context is the id of a context, whose variables the cell sees. It wins over Language. Empty
	// means the default context of the language, which all clients of the sandbox share.
	Context string
	// Stateless runs the cell in a kernel of its own, which is thrown away. Context must be empty
	// then.
	Stateless bool
	// OnStart gets the id of the execution, with which the cell can be interrupted.
	OnStart func(id string)
	// OnStdout, OnStderr and OnResult get what the cell shows as it comes.
	OnStdout, OnStderr func([]byte)
	OnResult           func(CodeResult)
	// MaxOutput is how many bytes of each output, and of all results together, the Execution keeps;
	// 0 means DefaultMaxOutput.
	MaxOutput int
}

// Execution is what became of a cell.
type Execution struct {
	ID             string
	Results        []CodeResult
	Stdout, Stderr string
	// Truncated says that there was more output, or there were more results, than was kept.
	Truncated bool
	// Error is nil when the cell ended well.
	Error *CodeError
	// Reason is why it failed, where that is known: OOMKilled.
	Reason string
	// Count is the number of the cell in its kernel.
	Count    int
	Duration time.Duration
}

// OOMKilled reports whether the cell's interpreter was ended because memory ran out, and with it
// the variables of its context.
func (e Execution) OOMKilled() bool { return e.Reason == OOMKilled }

// CodeError is why a cell failed.
type CodeError struct {
	// Name is what was raised, or KeyboardInterrupt, KernelDied, KernelUnavailable, OutputLost or
	// ContextEnded.
	Name      string
	Value     string
	Traceback []string
}

// Error implements error.
func (e *CodeError) Error() string {
	return clean(e.Name, 256) + ": " + clean(e.Value, maxMessage)
}

// CodeResult is something that a cell shows, in one or more MIME types: text as it is, images in
// base64, JSON as what encoding/json makes of it.
type CodeResult map[string]any

// String returns what there is of a MIME type as text; it is empty when there is none.
func (r CodeResult) String(mime string) string {
	text, _ := r[mime].(string)
	return text
}

// Text returns the plain text.
func (r CodeResult) Text() string { return r.String("text/plain") }

// HTML returns the HTML.
func (r CodeResult) HTML() string { return r.String("text/html") }

// Markdown returns the Markdown.
func (r CodeResult) Markdown() string { return r.String("text/markdown") }

// SVG returns the image in SVG.
func (r CodeResult) SVG() string { return r.String("image/svg+xml") }

// PNG returns the bytes of the image, nil when there is none.
func (r CodeResult) PNG() []byte { return r.image("image/png") }

// JPEG returns the bytes of the image, nil when there is none.
func (r CodeResult) JPEG() []byte { return r.image("image/jpeg") }

// JSON returns the value of application/json, nil when there is none.
func (r CodeResult) JSON() any { return r["application/json"] }

func (r CodeResult) image(mime string) []byte {
	data, err := base64.StdEncoding.DecodeString(r.String(mime))
	if err != nil || len(data) == 0 {
		return nil
	}
	return data
}

// Run runs a cell and returns when it has ended. Run succeeds when the cell raises: see
// Execution.Error. When ctx ends, the cell is interrupted.
func (c Code) Run(ctx context.Context, code string, o *CodeOptions) (Execution, error) {
	response, id, err := c.start(ctx, code, o)
	if err != nil {
		return Execution{}, err
	}
	if o != nil && o.OnStart != nil {
		o.OnStart(id)
	}
	execution, err := c.follow(ctx, id, response, o)
	if err != nil && ctx.Err() != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptPatience)
		defer cancel()
		_ = c.Interrupt(ctx, id)
	}
	return execution, err
}

// Start starts a cell. It goes on whatever becomes of ctx and of the client, except that a cell
// whose ctx ends before Start returns is interrupted: the caller does not have its id. Of o,
// OnStdout, OnStderr, OnResult and MaxOutput do not count.
func (c Code) Start(ctx context.Context, code string, o *CodeOptions) (*Cell, error) {
	response, id, err := c.start(ctx, code, o)
	if err != nil {
		return nil, err
	}
	_ = response.Body.Close()
	if o != nil && o.OnStart != nil {
		o.OnStart(id)
	}
	return c.Connect(id), nil
}

// Connect returns the cell with that id, which may run or have ended. It sends no request.
func (c Code) Connect(id string) *Cell { return &Cell{ID: id, code: c} }

// Cell is a cell in a sandbox.
type Cell struct {
	ID   string
	code Code
}

// Wait waits for the end of the cell and returns all that it shows, from its beginning. Of o only
// OnStdout, OnStderr, OnResult and MaxOutput count. When ctx ends, the cell goes on.
func (c *Cell) Wait(ctx context.Context, o *CodeOptions) (Execution, error) {
	return c.code.follow(ctx, c.ID, nil, o)
}

// Interrupt interrupts the cell.
func (c *Cell) Interrupt(ctx context.Context) error { return c.code.Interrupt(ctx, c.ID) }

// start starts a cell, and returns the stream of its events and its id.
func (c Code) start(ctx context.Context, code string, o *CodeOptions) (*http.Response, string, error) {
	if o == nil {
		o = &CodeOptions{}
	}
	choice := &execd.ContextChoice{ID: optional(o.Context)}
	switch {
	case o.Context != "" && o.Stateless:
		return nil, "", errors.New("sandbox: Stateless must not be given with a Context")
	case o.Context == "":
		choice.Language = optional(o.Language)
		if !o.Stateless {
			choice.Default = new(true)
		}
	}
	request := execd.CodeRequest{Code: code, Context: choice}
	creation := makeOnce(func(ctx context.Context, headers execd.RequestEditorFn) (*http.Response, error) {
		return c.box.daemon.RunCode(ctx, nil, request, headers)
	})
	response, err := c.box.client.send(ctx, repeatable, creation.request)
	if err != nil {
		creation.takeBack(ctx, executionID, c.Interrupt)
		return nil, "", err
	}
	if err := checkStream(response); err != nil {
		return nil, "", err
	}
	id := response.Header.Get(executionID)
	if id == "" {
		_ = response.Body.Close()
		return nil, "", errors.New("the answer has no X-Execution-ID")
	}
	return response, id, nil
}

// follow collects what a cell shows until it has ended, on a stream that is open already if there
// is one.
func (c Code) follow(ctx context.Context, id string, answer *http.Response,
	o *CodeOptions) (Execution, error) {
	if o == nil {
		o = &CodeOptions{}
	}
	execution := Execution{ID: id}
	stdout, stderr := newKept(o.MaxOutput), newKept(o.MaxOutput)
	room := newKept(o.MaxOutput).limit // for results
	f := &follower{
		client: c.box.client, what: "execution " + id, answer: answer, numbered: true, endless: true,
		open: func(ctx context.Context, last string) (*http.Response, error) {
			return c.box.daemon.StreamExecution(ctx, id,
				&execd.StreamExecutionParams{LastEventID: optional(last)})
		},
	}
	err := f.follow(ctx, func(data []byte) (bool, error) {
		event, err := decodeEvent[execd.StreamEvent](data)
		if err != nil {
			return false, err
		}
		if event.ExecutionCount != nil {
			execution.Count = *event.ExecutionCount
		}
		switch event.Type {
		case execd.StreamEventTypeStdout:
			stdout.add(outputOf(event), o.OnStdout)
		case execd.StreamEventTypeStderr:
			stderr.add(outputOf(event), o.OnStderr)
		case execd.StreamEventTypeStatus:
			execution.Truncated = true
		case execd.StreamEventTypeResult:
			if room -= len(data); room >= 0 {
				execution.Results = append(execution.Results, CodeResult(event.Results))
			} else {
				execution.Truncated = true
			}
			if o.OnResult != nil {
				o.OnResult(CodeResult(event.Results))
			}
		case execd.StreamEventTypeExecutionComplete, execd.StreamEventTypeError:
			execution.Duration = time.Duration(deref(event.ExecutionTime)) * time.Millisecond
			execution.Reason = string(deref(event.Reason))
			if e := event.Error; e != nil {
				execution.Error = &CodeError{Name: e.Ename, Value: e.Evalue, Traceback: e.Traceback}
			}
			return true, nil
		}
		return false, nil
	})
	execution.Stdout, execution.Stderr = stdout.String(), stderr.String()
	execution.Truncated = execution.Truncated || stdout.cut || stderr.cut
	return execution, err
}

// Interrupt interrupts the running cell of a context, or the execution with that id.
func (c Code) Interrupt(ctx context.Context, id string) error {
	return c.box.client.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		return c.box.daemon.InterruptCode(ctx, &execd.InterruptCodeParams{ID: id})
	})
}

// CreateContext starts a kernel that keeps its variables.
func (c Code) CreateContext(ctx context.Context, language string) (CodeContext, error) {
	var created CodeContext
	err := c.box.client.call(ctx, repeatable, &created, makeOnce(func(ctx context.Context,
		headers execd.RequestEditorFn) (*http.Response, error) {
		return c.box.daemon.CreateContext(ctx, nil, execd.ContextRequest{Language: language}, headers)
	}).request)
	return created, err
}

// Contexts returns the contexts of a language.
func (c Code) Contexts(ctx context.Context, language string) ([]CodeContext, error) {
	var contexts []CodeContext
	err := c.box.client.call(ctx, repeatable, &contexts,
		func(ctx context.Context) (*http.Response, error) {
			return c.box.daemon.ListContexts(ctx, &execd.ListContextsParams{Language: language})
		})
	return contexts, err
}

// Context returns the context with that id.
func (c Code) Context(ctx context.Context, id string) (CodeContext, error) {
	var found CodeContext
	err := c.box.client.call(ctx, repeatable, &found,
		func(ctx context.Context) (*http.Response, error) { return c.box.daemon.GetContext(ctx, id) })
	return found, err
}

// DeleteContext ends a context and its kernel.
func (c Code) DeleteContext(ctx context.Context, id string) error {
	return c.box.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return c.box.daemon.DeleteContext(ctx, id)
	})
}

// DeleteContexts ends all contexts of a language.
func (c Code) DeleteContexts(ctx context.Context, language string) error {
	return c.box.client.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		return c.box.daemon.DeleteContexts(ctx, &execd.DeleteContextsParams{Language: language})
	})
}
