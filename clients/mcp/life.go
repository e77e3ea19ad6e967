package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

const (
	// maxLife bounds a sandbox's life, in seconds; it is the contract's.
	maxLife = 86400
	// maxListed is how many sandboxes one call lists. maxName and maxImage bound what is shown of
	// their names and images, in bytes.
	maxListed = 50
	maxName   = 64
	maxImage  = 256
	// leavePatience is how long the deletion of a sandbox may take whose creator has gone.
	leavePatience = 10 * time.Second
)

// addLife adds the tools for the lives of sandboxes.
func (t *tools) addLife(server *mcp.Server, classes []string) {
	add(server, &mcp.Tool{Name: "create_sandbox", InputSchema: createSchema(classes),
		Description: "Create a sandbox and wait until it runs. Returns its id.",
		Annotations: changes("Create a sandbox", false, false, true)}, t.create)
	add(server, &mcp.Tool{Name: "list_sandboxes",
		Description: "List your sandboxes, newest first.",
		Annotations: readOnly("List sandboxes")}, t.list)
	add(server, &mcp.Tool{Name: "renew_sandbox",
		Description: "Make a sandbox expire later.",
		Annotations: changes("Renew a sandbox", false, true, false)}, t.renew)
	add(server, &mcp.Tool{Name: "pause_sandbox",
		Description: "Pause a sandbox, keeping its processes and memory, or resume it. " +
			"It expires all the same.",
		Annotations: changes("Pause or resume a sandbox", false, true, false)}, t.pause)
	add(server, &mcp.Tool{Name: "delete_sandbox",
		Description: "Delete a sandbox with everything in it.",
		Annotations: changes("Delete a sandbox", true, true, false)}, t.delete)
}

type createInput struct {
	Image      string            `json:"image,omitempty" jsonschema:"e.g. python:3.12; or the service's default"`
	Life       int               `json:"life_seconds,omitempty" jsonschema:"60 to 86400"`
	Name       string            `json:"name,omitempty" jsonschema:"label for people"`
	Env        map[string]string `json:"env,omitempty"`
	CPU        string            `json:"cpu,omitempty" jsonschema:"e.g. 500m"`
	Memory     string            `json:"memory,omitempty" jsonschema:"e.g. 512Mi"`
	AllowHosts []string          `json:"allow_hosts,omitempty" jsonschema:"all it may reach: domains, CIDRs"`
	Class      string            `json:"runtime_class,omitempty" jsonschema:"what runs it, e.g. gvisor"`
}

// createSchema is the schema of createInput, with the names of the service's runtime classes, and
// without the field where there are none.
func createSchema(classes []string) *jsonschema.Schema {
	schema, err := jsonschema.For[createInput](nil)
	if err != nil {
		panic(err) // the type is fixed
	}
	const field = "runtime_class"
	if len(classes) == 0 {
		delete(schema.Properties, field)
		schema.PropertyOrder = slices.DeleteFunc(schema.PropertyOrder,
			func(name string) bool { return name == field })
		return schema
	}
	for _, name := range classes {
		schema.Properties[field].Enum = append(schema.Properties[field].Enum, name)
	}
	return schema
}

func (t *tools) create(ctx context.Context, request call,
	in createInput) (content, error) {
	if in.Life != 0 && in.Life < 60 || in.Life > maxLife {
		return nil, fmt.Errorf("life_seconds must be 60 to %d, not %d", maxLife, in.Life)
	}
	options := &sandbox.CreateOptions{
		Image: in.Image, Timeout: time.Duration(in.Life) * time.Second, Env: in.Env,
		CPU: in.CPU, Memory: in.Memory,
		Metadata: map[string]string{"created-by": "mcp"}, RuntimeClass: in.Class, Wait: -1,
	}
	if in.Name != "" {
		options.Metadata["name"] = in.Name
	}
	if in.AllowHosts != nil {
		policy := sandbox.NetworkPolicy{DefaultAction: new(sandbox.Deny)}
		for _, host := range in.AllowHosts {
			policy.Egress = append(policy.Egress,
				sandbox.EgressRule{Action: sandbox.Allow, Target: host})
		}
		options.NetworkPolicy = &policy
	}
	client, err := t.client(ctx)
	if err != nil {
		return nil, err
	}
	box, err := client.Create(ctx, options)
	if err != nil {
		return nil, err
	}
	info, err := started(ctx, request, box)
	if err != nil {
		if ctx.Err() != nil { // no client has its id
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
			defer cancel()
			err = errors.Join(err, box.Delete(ctx))
		}
		return nil, t.suggest(ctx, client, err)
	}
	return text("id: %s\nstate: %s\nexpires: %s", info.ID, info.Status.State,
		info.ExpiresAt.Format(time.RFC3339)), nil
}

// maxSuggested is how many images an error suggests.
const maxSuggested = 10

// suggest adds to the error of an image that cannot be had which images the engine has, where the
// caller may see them.
func (t *tools) suggest(ctx context.Context, client *sandbox.Client, err error) error {
	var failed *sandbox.StateError
	if !errors.As(err, &failed) || failed.Reason != "IMAGE_PULL_ERROR" {
		return err
	}
	images, listing := client.Images.List(ctx)
	if listing != nil {
		return err
	}
	var names []string
	for _, image := range images {
		names = append(names, image.Names...)
	}
	if len(names) == 0 {
		return err
	}
	slices.Sort(names)
	return fmt.Errorf("%w\nimages that need no pull: %s", err,
		strings.Join(names[:min(len(names), maxSuggested)], ", "))
}

// started waits until a new sandbox runs, and reports how far it is.
func started(ctx context.Context, request call, box *sandbox.Sandbox) (sandbox.Info, error) {
	progress := newProgress(ctx, request)
	defer progress.stop()
	for event, err := range box.Events(ctx, &sandbox.EventOptions{FromStart: true}) {
		if err != nil {
			return sandbox.Info{}, err
		}
		switch {
		case event.Stage != nil:
			progress.say(*event.Stage)
		case event.Type == sandbox.EventProgress && event.Message != nil:
			progress.say(*event.Message)
		}
		pending := event.To != nil && *event.To == sandbox.Pending
		if event.Type != sandbox.EventStage && event.Type != sandbox.EventProgress && !pending {
			break
		}
	}
	return box.Wait(ctx, sandbox.Running)
}

type listInput struct {
	State string `json:"state,omitempty" jsonschema:"only this state, e.g. Running"`
}

func (t *tools) list(ctx context.Context, _ call,
	in listInput) (content, error) {
	client, err := t.client(ctx)
	if err != nil {
		return nil, err
	}
	options := &sandbox.ListOptions{Limit: maxListed + 1}
	if in.State != "" {
		options.States = []string{in.State}
	}
	var shown lines
	count := 0
	for info, err := range client.List(ctx, options) {
		if err != nil {
			return nil, err
		}
		if count == maxListed || !shown.add("%s %s image=%s name=%q expires=%s\n", info.ID,
			info.Status.State, short(info.Image.URI, maxImage), short(info.Metadata["name"], maxName),
			info.ExpiresAt.Format(time.RFC3339)) {
			fmt.Fprintf(&shown, "There are more than %d; choose a state.\n", count)
			break
		}
		count++
	}
	if count == 0 {
		return text("There are no sandboxes."), nil
	}
	return text("%s", shown.String()), nil
}

// boxInput is the sandbox that a call is about. Its description is short: it is in every tool.
type boxInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id"`
}

type renewInput struct {
	boxInput
	Life int `json:"life_seconds" jsonschema:"from now, up to 86400"`
}

func (t *tools) renew(ctx context.Context, _ call,
	in renewInput) (content, error) {
	if in.Life < 1 || in.Life > maxLife {
		return nil, fmt.Errorf("life_seconds must be 1 to %d, not %d", maxLife, in.Life)
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	until, err := box.Renew(ctx, time.Duration(in.Life)*time.Second)
	if err != nil {
		return nil, err
	}
	return text("expires: %s", until.Format(time.RFC3339)), nil
}

type pauseInput struct {
	boxInput
	Paused bool `json:"paused" jsonschema:"true pauses, false resumes"`
}

func (t *tools) pause(ctx context.Context, _ call,
	in pauseInput) (content, error) {
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	want, change := sandbox.Running, box.Resume
	if in.Paused {
		want, change = sandbox.Paused, box.Pause
	}
	if box.Info().Status.State != want {
		if err := change(ctx); err != nil {
			return nil, err
		}
	}
	return text("state: %s", want), nil
}

func (t *tools) delete(ctx context.Context, _ call,
	in boxInput) (content, error) {
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := box.Delete(ctx); err != nil {
		return nil, err
	}
	return text("deleted"), nil
}
