package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// Locate implements lifecycle.Backend: the pod's own address, which is reached inside the cluster's
// network.
func (c *Cluster) Locate(ctx context.Context, id string, port int) (lifecycle.Location, error) {
	e, err := c.reachable(ctx, id, port)
	if err != nil {
		return lifecycle.Location{}, err
	}
	execd, sidecar, err := c.view.Tokens(ctx, e)
	if err != nil {
		return lifecycle.Location{}, err
	}
	if e.HasSidecar() && port == lifecycle.SidecarPort {
		return lifecycle.Location{Endpoint: lifecycle.Endpoint{
			Host: e.Address(), Port: port, Headers: map[string]string{lifecycle.SidecarTokenHeader: sidecar},
		}}, nil
	}
	return lifecycle.Location{
		Endpoint: lifecycle.Endpoint{
			Host: e.Address(), Port: v1alpha1.PortExecd, Path: fmt.Sprintf("/proxy/%d", port), Headers: map[string]string{lifecycle.TokenHeader: execd},
		},
		Daemon: net.JoinHostPort(e.Address(), strconv.Itoa(v1alpha1.PortExecd)),
		Token:  execd,
	}, nil
}

// runningSidecar returns a sandbox's sidecar, if it can be asked.
func (c *Cluster) runningSidecar(ctx context.Context, id string) (SidecarClient, lifecycle.Sidecar, error) {
	e, err := c.view.Find(ctx, id)
	if err != nil {
		return nil, lifecycle.Sidecar{}, err
	}
	if !e.HasSidecar() {
		return nil, lifecycle.Sidecar{}, lifecycle.Conflictf("the sandbox has no egress sidecar: when it was created, egress.image was not set, or its Pool has none")
	}
	if err := e.Sandbox.Status.State.CheckSidecar(); err != nil {
		return nil, lifecycle.Sidecar{}, err
	}
	_, token, err := c.view.Tokens(ctx, e)
	if err != nil {
		return nil, lifecycle.Sidecar{}, err
	}
	return c.NewSidecarClient(e.Address()), lifecycle.Sidecar{Token: token, Port: lifecycle.SidecarPort}, nil
}

// NetworkPolicy implements lifecycle.Backend.
func (c *Cluster) NetworkPolicy(ctx context.Context, id string) (lifecycle.NetworkPolicy, error) {
	client, sidecar, err := c.runningSidecar(ctx, id)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	return client.Policy(ctx, sidecar)
}

// ChangeNetworkPolicy implements lifecycle.Backend. The sidecar comes first: the annotation follows
// what is in force.
func (c *Cluster) ChangeNetworkPolicy(ctx context.Context, id string, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error) {
	client, sidecar, err := c.runningSidecar(ctx, id)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	ctx = context.WithoutCancel(ctx) // a client that leaves must not leave the two apart
	policy, err := client.Change(ctx, sidecar, change)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	_, err = c.change(ctx, id, func(_ *view.Entry, b *v1alpha1.BatchSandbox) (bool, error) {
		// Another change may have come since: whoever writes last must write what is in force then.
		inForce, err := client.Policy(ctx, sidecar)
		if err != nil {
			return false, err
		}
		before := b.Annotations[view.AnnotationPolicy]
		if err := view.Annotate(b, view.AnnotationPolicy, inForce); err != nil {
			return false, err
		}
		return b.Annotations[view.AnnotationPolicy] != before, checkAnnotations(b)
	})
	return policy, err
}

// ProposeNetworkPolicy implements lifecycle.Backend.
func (c *Cluster) ProposeNetworkPolicy(ctx context.Context, id string) (lifecycle.NetworkPolicy, error) {
	client, sidecar, err := c.runningSidecar(ctx, id)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	return client.Propose(ctx, sidecar)
}

// NetworkDecisions implements lifecycle.Backend.
func (c *Cluster) NetworkDecisions(ctx context.Context, id string, request lifecycle.DecisionsRequest) (io.ReadCloser, error) {
	client, sidecar, err := c.runningSidecar(ctx, id)
	if err != nil {
		return nil, err
	}
	return client.Decisions(ctx, sidecar, request)
}

// Logs implements lifecycle.Backend.
func (c *Cluster) Logs(ctx context.Context, id string, options lifecycle.LogOptions, open func() io.Writer) error {
	e, err := c.view.Find(ctx, id)
	if err != nil {
		return err
	}
	// What this answer waits for must not outlive the cluster.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()

	var out io.Writer
	pending := func(e *view.Entry) bool { return e.Sandbox.Status.State == lifecycle.StatePending }
	if options.Follow && pending(e) {
		out = open() // nothing is printed yet; the client gets the headers at once
		e = c.view.Await(ctx, e, lifecycle.MaxTimeout, func(e *view.Entry) bool { return !pending(e) })
	}
	log, err := c.openLog(ctx, e, options)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if out == nil {
		out = open()
	}
	if _, err := io.Copy(out, log); err != nil {
		return fmt.Errorf("log of sandbox %s: %w", id, err)
	}
	return nil
}

// nothing is an empty log.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }
func (nothing) Close() error             { return nil }

func (c *Cluster) openLog(ctx context.Context, e *view.Entry, options lifecycle.LogOptions) (io.ReadCloser, error) {
	state := e.Sandbox.Status.State
	lost := lifecycle.Conflictf("the log is lost: the sandbox is %s, and on a cluster a log goes with its pod; the end of it is in the sandbox's message when it failed", state)
	pod, container := podOf(e)
	if pod == "" {
		if state == lifecycle.StatePending {
			return nothing{}, nil
		}
		return nil, lost
	}
	wanted := &corev1.PodLogOptions{Container: container, Follow: options.Follow}
	if options.Tail != nil {
		lines := int64(*options.Tail)
		wanted.TailLines = &lines
	}
	if !options.Since.IsZero() {
		wanted.SinceTime = &metav1.Time{Time: options.Since.Truncate(time.Second)}
	}
	log, err := c.pods.CoreV1().Pods(c.Namespace).GetLogs(pod, wanted).Stream(ctx)
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return log, nil
	case apierrors.IsNotFound(err) && state != lifecycle.StatePending:
		return nil, lost
	case apierrors.IsNotFound(err), apierrors.IsBadRequest(err) && errors.As(err, &status): // no pod, or no container in it, yet
		return nothing{}, nil
	}
	return nil, view.Explain(err)
}

// podOf returns the names of a sandbox's pod and of its container there; none while it has no pod.
// A pod of a Pool is the sandbox's for good, and prints nothing before.
func podOf(e *view.Entry) (pod, container string) {
	if e.Batch.Spec.PoolRef == "" {
		return e.Batch.Name + "-0", containerSandbox
	}
	allocation, err := e.Batch.Allocation()
	if err != nil || len(allocation.Pods) == 0 || e.Batch.Spec.Claim == nil {
		return "", ""
	}
	return allocation.Pods[0], e.Batch.Spec.Claim.Container
}
