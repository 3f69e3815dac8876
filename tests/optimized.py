"""What TensorFlow makes of a graph before it runs it."""

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework import meta_graph
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.grappler.cluster import Cluster


def optimized_nodes(graph):
    """The nodes of a function's graph that its first output needs, once it is optimized for a CPU."""
    told = meta_graph.create_meta_graph_def(graph=graph)
    told.collection_def["train_op"].node_list.value.append(graph.outputs[0].name)
    for node in told.graph_def.node:
        node.device = "/job:localhost/replica:0/task:0/device:CPU:0"
    return tf_optimizer.OptimizeGraph(config_pb2.ConfigProto(), told, cluster=Cluster()).node
