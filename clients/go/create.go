package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"sandbox.internal/clients/go/lifecycle"
)

const (
	// DefaultWait is how long Create waits until the sandbox is Running. It includes the pull of
	// the image.
	DefaultWait = 10 * time.Minute
	// waitStep is how long one request waits. Proxies end requests of a minute.
	waitStep = 25 * time.Second
	// acceptPatience is how long a create that is on its way may go on after its context ended.
	acceptPatience = 5 * time.Second
)

// CreateOptions describe a sandbox. Fields that are empty have the defaults that the service
// publishes, see [Client.Defaults].
type CreateOptions struct {
	// Image is the reference of a container image; Username and Password are for a private
	// registry.
	Image, Username, Password string
	// SnapshotID is a snapshot whose files the sandbox begins with; Image must be empty then. An
	// Entrypoint and limits that are empty are those of the snapshot.
	SnapshotID string
	// Entrypoint is the sandbox's own program and its arguments; the sandbox ends when it does.
	Entrypoint []string
	// ImageEntrypoint runs the image's own entrypoint and command; Entrypoint must be empty then.
	ImageEntrypoint bool
	// Timeout is how long the sandbox lives, in whole seconds from 60 to 86400. Renew moves its
	// end.
	Timeout time.Duration
	// CPU is a number of cores ("0.5", "250m"), Memory bytes with a unit ("512Mi"), GPU a number.
	// For an empty CPU or Memory the service has its default; without a GPU there is none.
	CPU, Memory, GPU string
	// Env are environment variables, on top of the image's own.
	Env map[string]string
	// Metadata are tags; "name" is for people.
	Metadata map[string]string
	// NetworkPolicy is what the sandbox may reach; nil means everything, and an empty one is
	// [ErrEmptyPolicy].
	NetworkPolicy *NetworkPolicy
	Volumes       []Volume
	// RuntimeClass is the name of what runs the sandbox, one of Version.RuntimeClasses; empty means
	// the service's default.
	RuntimeClass string
	// Extensions are settings of the provider, a JSON object.
	Extensions json.RawMessage
	// Lifecycle says when the sandbox falls asleep or ends by itself; nil leaves it Running until its
	// time is up.
	Lifecycle *LifecycleOptions

	// IdempotencyKey makes the create safe to repeat by the caller: for 24 hours the same key with
	// the same options is the same sandbox. Empty means a new one for each call.
	IdempotencyKey string
	// Wait is how long to wait until the sandbox is Running; 0 means DefaultWait, and a negative
	// one not to wait: the sandbox may be Pending then.
	Wait time.Duration
}

// IdleEntrypoint returns an entrypoint that does nothing until the sandbox is to end. It is in
// every sandbox, whatever the image has.
func IdleEntrypoint() []string { return []string{"/opt/sandbox/execd-init", "idle"} }

// ErrNoImage is the error of a Create without an image, at a service that has no default image.
var ErrNoImage = errors.New(
	"no image is given, and the service has no default one (server.default_image)")

// fallback are the defaults that the contract has for services which publish none.
func fallback() CreateDefaults { return CreateDefaults{Timeout: 3600, Entrypoint: IdleEntrypoint()} }

// askedDefaults are the defaults of a service, which clients with the same key share.
type askedDefaults struct {
	mu    sync.Mutex
	known *CreateDefaults // nil until the service was asked
}

// Defaults returns what Create asks for where its options say nothing, for the client's key. The
// service is asked once.
func (c *Client) Defaults(ctx context.Context) (CreateDefaults, error) {
	c.defaults.mu.Lock()
	known := c.defaults.known
	c.defaults.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	version, err := c.Version(ctx)
	if err != nil && !errors.Is(err, ErrNotFound) { // a service without extensions has no version
		return CreateDefaults{}, err
	}
	if known = version.Defaults; known == nil {
		known = new(fallback())
	}
	c.defaults.mu.Lock()
	c.defaults.known = known
	c.defaults.mu.Unlock()
	return *known, nil
}

// filled returns the options with the service's defaults in the place of what is empty. Limits are
// left to the service.
func (c *Client) filled(ctx context.Context, o CreateOptions) (CreateOptions, error) {
	own := o.ImageEntrypoint || len(o.Entrypoint) > 0 || o.SnapshotID != ""
	if (o.Image != "" || o.SnapshotID != "") && o.Timeout != 0 && own {
		return o, nil
	}
	defaults, err := c.Defaults(ctx)
	if err != nil {
		return o, err
	}
	if o.SnapshotID == "" {
		o.Image = cmp.Or(o.Image, deref(defaults.Image))
	}
	o.Timeout = cmp.Or(o.Timeout, time.Duration(defaults.Timeout)*time.Second)
	if !own {
		o.Entrypoint = defaults.Entrypoint
	}
	if o.Image == "" && o.SnapshotID == "" {
		return o, ErrNoImage
	}
	return o, nil
}

// request is what the contract calls the options, which are filled.
func (o *CreateOptions) request() lifecycle.CreateSandboxRequest {
	request := lifecycle.CreateSandboxRequest{
		Image:      lifecycle.Image{URI: o.Image},
		SnapshotID: optional(o.SnapshotID),
		Lifecycle:  o.Lifecycle.optional(),
		Entrypoint: o.Entrypoint,
		Timeout:    int(o.Timeout / time.Second),
		ResourceLimits: &lifecycle.ResourceLimits{
			CPU: optional(o.CPU), Memory: optional(o.Memory), Gpu: optional(o.GPU),
		},
		Env: o.Env, Metadata: o.Metadata, NetworkPolicy: o.NetworkPolicy, Volumes: o.Volumes,
		Extensions: o.Extensions, RuntimeClass: optional(o.RuntimeClass),
	}
	if o.SnapshotID != "" && *request.ResourceLimits == (lifecycle.ResourceLimits{}) {
		request.ResourceLimits = nil // those of the snapshot
	}
	if o.ImageEntrypoint {
		request.ImageEntrypoint = &o.ImageEntrypoint
	}
	if o.Username != "" || o.Password != "" {
		request.Image.Auth = &lifecycle.ImageAuth{Username: o.Username, Password: o.Password}
	}
	return request
}

// Create makes a sandbox and waits until it is Running. It never makes two: all attempts carry one
// Idempotency-Key. A sandbox that fails is a [*StateError] with the reason. When waiting fails,
// because of ctx for example, the sandbox is returned with the error, so that it can be deleted.
func (c *Client) Create(ctx context.Context, o *CreateOptions) (*Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if o == nil {
		o = &CreateOptions{}
	}
	if err := checkPolicy(o.NetworkPolicy); err != nil {
		return nil, err
	}
	full, err := c.filled(ctx, *o)
	if err != nil {
		return nil, err
	}
	o = &full
	key := cmp.Or(o.IdempotencyKey, rand.Text())
	request := o.request()
	wait := cmp.Or(o.Wait, DefaultWait)
	var created lifecycle.CreatedSandbox
	// The request itself does not wait, and outlives ctx: its answer has the id of what was made.
	accepting, release := outlive(ctx, acceptPatience)
	defer release()
	err = c.call(accepting, repeatable, &created, func(ctx context.Context) (*http.Response, error) {
		return c.service.CreateSandbox(ctx, &lifecycle.CreateSandboxParams{IdempotencyKey: &key}, request)
	})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if created.ID == "" || strings.Contains(created.ID, "/") {
		return nil, fmt.Errorf("the answer has no id")
	}
	box, err := c.box(Info{
		ID: created.ID, Status: created.Status, Metadata: created.Metadata,
		Entrypoint: created.Entrypoint, Image: lifecycle.Image{URI: o.Image},
		CreatedAt: created.CreatedAt, ExpiresAt: created.ExpiresAt, Extensions: o.Extensions,
		RuntimeClass: optional(o.RuntimeClass), SnapshotID: optional(o.SnapshotID),
	})
	if err != nil || wait < 0 {
		return box, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait,
		fmt.Errorf("sandbox %s is not Running after %v", created.ID, wait))
	defer cancel()
	if _, err := box.waitFrom(ctx, box.Info(), Running); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return box, err
	}
	return box, nil
}

// outlive returns a context that ends some time after ctx.
func outlive(ctx context.Context, patience time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(patience, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// prefer asks the service to wait with its answer, for whole seconds and at least one.
func prefer(d time.Duration) *string {
	text := fmt.Sprintf("wait=%d", max(1, int(d/time.Second)))
	return &text
}

// Connect returns the sandbox with that id. It may be in any state.
func (c *Client) Connect(ctx context.Context, id string) (*Sandbox, error) {
	info, err := c.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.box(info)
}

// Get returns a sandbox's details.
func (c *Client) Get(ctx context.Context, id string) (Info, error) {
	return c.get(ctx, id, 0)
}

// get waits for a while until the state is no transient one.
func (c *Client) get(ctx context.Context, id string, wait time.Duration) (Info, error) {
	var info Info
	err := c.call(ctx, repeatable, &info, func(ctx context.Context) (*http.Response, error) {
		params := &lifecycle.GetSandboxParams{}
		if wait > 0 {
			params.Prefer = prefer(wait)
		}
		return c.service.GetSandbox(ctx, id, params)
	})
	return info, err
}
