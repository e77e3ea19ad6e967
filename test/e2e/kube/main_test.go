package kube_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/cluster"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

const (
	baseImage     = "sandbox/base:dev"
	busyboxImage  = "sandbox/busybox:dev"
	egressImage   = "sandbox/egress:dev"
	execdImage    = "sandbox/execd:dev"
	executorImage = "sandbox/task-executor:dev"
	pythonImage   = "sandbox/python:dev"

	// labelTest is on everything that these tests make outside of a namespace, and on their
	// namespaces.
	labelTest = "sandbox.internal/test"
)

var (
	kubernetes *cluster.Cluster // of all tests but those that say why they have one of their own
	admin      client.Client    // of an administrator there
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "test/e2e/kube: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	// Libraries of Kubernetes have one logger for the whole process.
	manager.SetLogger(logr.Discard())
	defer conformance.RemoveBuilt()
	if err := overlap(); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	kubernetes, err = cluster.Start(ctx, cluster.Options{
		Images: []string{baseImage, busyboxImage, egressImage, execdImage, executorImage,
			pythonImage},
	})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, kubernetes.Stop()) }()
	if err := kubernetes.Define(ctx, definitions); err != nil {
		return 1, err
	}
	var disconnect func()
	if admin, disconnect, err = connect(kubernetes); err != nil {
		return 1, err
	}
	code = m.Run()
	if code == 0 {
		err = nothingLeft()
	}
	disconnect()
	if code == 0 && err == nil {
		if left := cluster.Goroutines(); left != "" {
			err = fmt.Errorf("goroutines are left:\n%s", left)
		}
	}
	return code, err
}

// overlap runs four tests at the same time, unless the command line says how many: half of the time
// they wait for the node or for a clock. With eight, a pod needed a minute to start, and all of the
// tests took no less time.
func overlap() error {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if chosen {
		return nil
	}
	return flag.Set("test.parallel", "4")
}

// definitions are those of our resources.
const definitions = "../../../runtime/kube/config/crd"

// connect returns an administrator's client of a cluster, and what closes its connections.
func connect(c *cluster.Cluster) (client.Client, func(), error) {
	config, err := access(c)
	if err != nil {
		return nil, nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme),
		v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	connected, err := client.New(config, client.Options{Scheme: scheme, HTTPClient: transport})
	return connected, func() { utilnet.CloseIdleConnectionsFor(transport.Transport) }, err
}

// access is how an administrator reaches a cluster.
func access(c *cluster.Cluster) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// nothingLeft finds what the tests have left in the cluster.
func nothingLeft() error {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
	defer cancel()
	ours := client.HasLabels{labelTest}
	var left []string
	for _, list := range []client.ObjectList{&corev1.NamespaceList{},
		&corev1.PersistentVolumeList{}} {
		if err := admin.List(ctx, list, ours); err != nil {
			return err
		}
		left = append(left, names(list)...)
	}
	var pods corev1.PodList
	if err := admin.List(ctx, &pods,
		client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}); err != nil {
		return err
	}
	// A cluster of KUBECONFIG may have sandboxes of its own.
	if kubernetes.Directory != "" {
		left = append(left, names(&pods)...)
	}
	if len(left) > 0 {
		return fmt.Errorf("the tests have left %s", strings.Join(left, ", "))
	}
	return nil
}
